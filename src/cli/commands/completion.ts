/** Shell completion: each script calls `berth __complete WORDS…`. */

import type { Command } from '../command.ts';
import { UsageError } from '../command-error.ts';

const SCRIPTS: Readonly<Record<string, string>> = {
  bash: `_berth() {
  mapfile -t COMPREPLY < <(compgen -W "$(berth __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)" -- "\${COMP_WORDS[COMP_CWORD]}")
}
complete -F _berth berth
`,
  zsh: `#compdef berth
_berth() {
  compadd -- \${(f)"$(berth __complete "\${(@)words[2,CURRENT]}" 2> /dev/null)"}
}
# zsh loads this file at the first completion, which must be answered too.
if [ "$funcstack[1]" = _berth ]; then
  _berth
else
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
  compdef _berth berth
fi
`,
  fish: `complete -c berth -f -a '(berth __complete (commandline -opc)[2..] "$(commandline -ct)" 2> /dev/null)'
`,
};

export const COMPLETION: Command = {
  name: 'completion',
  args: ['SHELL'],
  summary: 'print the completion script of bash, zsh or fish',
  example: 'source <(berth completion bash)',
  run: async ({ args: [shell = ''] }) => {
    const script = SCRIPTS[shell];
    if (script === undefined) throw new UsageError(`completion is for bash, zsh and fish, not ${shell}`);
    process.stdout.write(script);
    return undefined;
  },
};
