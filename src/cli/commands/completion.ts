/** Shell completion: each script calls `berth __complete WORDS…`, which answers `:files` where the shell is to complete paths. */
import type { Command } from '../command.ts';
import { UsageError } from '../command-error.ts';

const SCRIPTS: Readonly<Record<string, string>> = {
  bash: `_berth() {
  mapfile -t COMPREPLY < <(berth __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
  case "\${COMPREPLY[0]-}" in
    :files) COMPREPLY=(); compopt -o default ;;
    :folders) COMPREPLY=(); compopt -o dirnames ;;
  esac
}
complete -F _berth berth
`,
  zsh: `#compdef berth
_berth() {
  local -a found
  found=(\${(f)"$(berth __complete "\${(@)words[2,CURRENT]}" 2> /dev/null)"})
  case "\${found[1]-}" in
    :files) _files ;;
    :folders) _files -/ ;;
    *) compadd -- $found ;;
  esac
}
# zsh loads this file at the first completion, which must be answered too.
if [ "$funcstack[1]" = _berth ]; then
  _berth
else
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
  compdef _berth berth
fi
`,
  fish: `function __berth_complete
  set -l typed (commandline -ct)
  set -l found (berth __complete (commandline -opc)[2..] "$typed" 2> /dev/null)
  switch "$found[1]"
    case :files
      __fish_complete_path "$typed"
    case :folders
      __fish_complete_directories "$typed"
    case ''
    case '*'
      printf '%s\\n' $found
  end
end
complete -c berth -f -a '(__berth_complete)'
`,
};

export const COMPLETION: Command = {
  name: 'completion',
  args: ['SHELL'],
  summary: 'print the completion script of bash, zsh or fish',
  example: 'source <(berth completion bash)',
  run: async ({ args: [shell = ''] }) => {
    const script = SCRIPTS[shell];
    if (script === undefined) throw new UsageError(`SHELL is bash, zsh or fish, not ${shell}`);
    process.stdout.write(script);
    return undefined;
  },
};
