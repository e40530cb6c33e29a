# SPDX-License-Identifier: Apache-2.0
# Fails when an object of OBJECTS defines a weak symbol that is not an
# instantiation over one of the *Simd structs.
set(seen 0)
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C --defined-only ${object}
    OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${out}")
  foreach(line IN LISTS lines)
    if(line MATCHES "Simd")
      math(EXPR seen "${seen} + 1")
    elseif(line MATCHES "^[0-9a-f]+ [WVu] " AND NOT
        line MATCHES "__(asan|ubsan|tsan|odr)|DW\\.ref\\.__gxx_personality")
      message(FATAL_ERROR "${object} shares a symbol: ${line}")
    endif()
  endforeach()
endforeach()
if(seen LESS 10)
  message(FATAL_ERROR "looked at too little: ${seen} symbols")
endif()
