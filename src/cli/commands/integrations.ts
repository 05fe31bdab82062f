/**
 * The commands that other programs start: `berth mcp` serves tools to AI models over stdin and stdout, and
 * `berth completion` prints a shell's completion script. Such a script calls `berth __complete WORDS…` at each
 * completion; an answer `:files` or `:folders` tells the shell to complete paths itself.
 */
import { once } from 'node:events';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { version } from '../session.ts';

async function serve({ session, signal, terminal }: Call): Promise<undefined> {
  // A missing login is told now, where the client's log shows it, and not by each tool.
  const berth = session.berth();
  // Loaded by this command alone.
  const { serveStdio } = await import('@modelcontextprotocol/server/stdio');
  const { mcpServer } = await import('../../mcp/mcp-server.ts');
  const { stdin } = process;
  const ended = once(stdin, 'end', { signal });
  const handle = serveStdio(() => mcpServer(berth, version()), {
    onerror: (error) => terminal.warn(`berth mcp: ${error.message}`),
    maxSubscriptions: 0,
  });
  try {
    await ended;
  } finally {
    await handle.close();
    stdin.destroy();
  }
  signal.throwIfAborted();
}

export const MCP: Command = {
  name: 'mcp',
  summary: 'serve the tools of the Model Context Protocol to a program on stdin and stdout',
  details:
    'A client of MCP starts this command: configure `berth` with the argument `mcp`. The tools use your login, or BERTH_API_KEY, with its scopes. docs/mcp.md lists them.',
  example: 'berth mcp',
  run: serve,
};

const SCRIPTS: Readonly<Record<string, string>> = {
  bash: `_berth() {
  # Bash splits words at @, : and = too: what no blank separates is one word.
  local rest=\${COMP_LINE:0:COMP_POINT} last=\${COMP_WORDS[COMP_CWORD]} words=() word i
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    if [[ $i -gt 0 && -n $word && $rest == "$word"* ]]; then words[-1]+=$word
    else
      rest=\${rest#"\${rest%%[![:space:]]*}"}
      words+=("$word")
    fi
    rest=\${rest#"$word"}
  done
  mapfile -t COMPREPLY < <(berth __complete "\${words[@]:1}" 2> /dev/null)
  case "\${COMPREPLY[0]-}" in
    :files) COMPREPLY=(); compopt -o default; return ;;
    :folders) COMPREPLY=(); compopt -o dirnames; return ;;
  esac
  # It replaces only what follows the last split, and quotes nothing itself.
  [[ $last == [@:=] ]] && last=
  word=\${words[-1]}
  for i in "\${!COMPREPLY[@]}"; do
    [[ $word == [\\"\\']* || \${COMPREPLY[i]} != *' '* ]] || printf -v 'COMPREPLY[i]' %q "\${COMPREPLY[i]}"
    COMPREPLY[i]=\${COMPREPLY[i]#"\${word%"$last"}"}
  done
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
