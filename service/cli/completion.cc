// SPDX-License-Identifier: Apache-2.0
//
// torpor completion bash|zsh: made from the commands themselves, so that it
// cannot lag behind them.

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

std::vector<std::string> WordsOf(const CLI::App* command) {
  std::vector<std::string> words;
  for (const CLI::App* sub : command->get_subcommands(nullptr)) {
    if (!sub->get_name().empty()) words.push_back(sub->get_name());
  }
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      words.push_back("--" + name);
    }
  }
  return words;
}

// `case` arms "path) words" for a command and those below it.
void AppendArms(const CLI::App* command, const std::string& path,
                std::string* out) {
  absl::StrAppendFormat(out, "    '%s') words='%s' ;;\n", path,
                        absl::StrJoin(WordsOf(command), " "));
  for (const CLI::App* sub : command->get_subcommands(nullptr)) {
    if (sub->get_name().empty()) continue;
    AppendArms(sub,
               path.empty() ? sub->get_name() : path + " " + sub->get_name(),
               out);
  }
}

std::string BashScript(const CLI::App* app) {
  std::string arms;
  AppendArms(app, "", &arms);
  std::string names;
  const std::function<void(const CLI::App*)> collect =
      [&](const CLI::App* command) {
        for (const CLI::App* sub : command->get_subcommands(nullptr)) {
          if (sub->get_name().empty()) continue;
          names += " " + sub->get_name();
          collect(sub);
        }
      };
  collect(app);
  return absl::StrFormat(
      "_torpor() {\n"
      "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" path='' word words='' i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=\"${COMP_WORDS[i]}\"\n"
      "    case ' %s ' in *\" $word \"*) path=\"${path:+$path }$word\" ;; "
      "esac\n"
      "  done\n"
      "  case \"$path\" in\n%s  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
      "}\n"
      "complete -F _torpor torpor\n",
      names, arms);
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Run* run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* c = app->add_subcommand("completion", "Shell completion script");
  c->add_option("shell", *shell, "bash or zsh")->required();
  c->callback([=] {
    *run = [=]() -> absl::Status {
      if (*shell == "zsh") {
        std::cout << "autoload -U +X bashcompinit && bashcompinit\n";
      } else if (*shell != "bash") {
        return absl::InvalidArgumentError(absl::StrFormat(
            "completion: got '%s', wanted bash or zsh", *shell));
      }
      std::cout << BashScript(app);
      return absl::OkStatus();
    };
  });
}

}  // namespace torpor::service::cli
