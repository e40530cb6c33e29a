# SPDX-License-Identifier: Apache-2.0
# The Debian package: what is installed where, and CPack's settings. The target
# `package` makes torpor_<version>_<architecture>.deb; docs/DEPLOY.md uses it.

include(GNUInstallDirs)

# Debian's own tools take who packages from these.
set(packager "Torpor maintainers <maintainers@torpor.invalid>")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
  set(packager "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(TORPOR_PACKAGER "" CACHE STRING
  "Who answers for the package: name <address>; else as the environment says.")
if(TORPOR_PACKAGER)
  set(packager ${TORPOR_PACKAGER})
endif()
find_program(TORPOR_HELP2MAN help2man)
if(NOT TORPOR_HELP2MAN)
  message(FATAL_ERROR "help2man: not there, wanted for manual pages; "
    "scripts/setup installs it")
endif()
set(deploy ${CMAKE_SOURCE_DIR}/deploy)
set(packaged ${CMAKE_BINARY_DIR}/packaged)
set(doc ${CMAKE_INSTALL_DATADIR}/doc/torpor)

# Completions are made by the program that they complete.
add_custom_command(OUTPUT ${packaged}/torpor.bash ${packaged}/changelog.gz
  COMMAND torpor completion bash > ${packaged}/torpor.bash
  COMMAND gzip -9nc ${deploy}/debian/changelog > ${packaged}/changelog.gz
  DEPENDS torpor ${deploy}/debian/changelog VERBATIM)
file(MAKE_DIRECTORY ${packaged})
set(pages)
# So are their manual pages.
foreach(page torpor.1 torpor-bench.1 torpord.8)
  get_filename_component(program ${page} NAME_WE)
  get_filename_component(section ${page} LAST_EXT)
  string(SUBSTRING ${section} 1 1 section)
  add_custom_command(OUTPUT ${packaged}/${page}.gz
    COMMAND ${deploy}/debian/man-page $<TARGET_FILE:${program}> ${section}
      > ${packaged}/${page}
    COMMAND gzip -9nf ${packaged}/${page}
    DEPENDS ${program} ${deploy}/debian/man-page ${deploy}/debian/${program}.h2m
      ${deploy}/debian/changelog
    VERBATIM)
  list(APPEND pages ${packaged}/${page}.gz)
  install(FILES ${packaged}/${page}.gz
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
add_custom_target(torpor_packaged ALL
  DEPENDS ${packaged}/torpor.bash ${packaged}/changelog.gz ${pages})

# torpor-bench stands beside torpor, which starts it.
install(TARGETS torpord torpor torpor-bench RUNTIME)
install(FILES ${packaged}/torpor.bash
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME torpor)
install(FILES models/nano/config.json models/nano/model.safetensors
    models/nano/README.md
  DESTINATION ${CMAKE_INSTALL_DATADIR}/torpor/models/nano)
install(FILES ${packaged}/changelog.gz ${deploy}/debian/copyright README.md
    docs/CONFIGURATION.md docs/DEPLOY.md
  DESTINATION ${doc})
# As Debian 12 has them: the unit where dpkg's packages put theirs.
install(FILES ${deploy}/systemd/torpord.service DESTINATION /lib/systemd/system)
install(FILES ${deploy}/debian/torpord.toml DESTINATION /etc/torpor)

set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME torpor)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "daemon that puts LLM sessions to sleep on SSD and wakes them")
set(CPACK_PACKAGE_DESCRIPTION
  "Long agent sessions wait most of their life. torpord stores the part of their
KV cache that cannot be recomputed cheaply, and rebuilds the windows of
sliding-window layers by replay when the session wakes: exactly, or within a
measured error. This package holds the daemon, its command line, the benchmarks
and a small trained model to try them with.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${packager})
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${deploy}/debian/conffiles
  ${deploy}/debian/postinst ${deploy}/debian/prerm ${deploy}/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE
  OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
