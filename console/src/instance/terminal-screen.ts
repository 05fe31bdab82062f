/**
 * Connects an xterm.js terminal to a WebSocket. This module is loaded only when a console is opened.
 *
 * xterm.js writes its rules into `<style>` elements, which the page's content security policy forbids. So
 * `createElement` is replaced while xterm.js sets itself up: the text of a style element becomes a constructed style
 * sheet (CSSOM, section 6.2.1), which the policy allows.
 */
import { FitAddon } from '@xterm/addon-fit';
import { Terminal } from '@xterm/xterm';

export interface Screen {
  readonly dispose: () => void;
}

/** Makes the text of an element a constructed style sheet. */
function asSheet(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, 'textContent', {
    get: () => '',
    set: (text: string) => sheet.replaceSync(text),
  });
  const { remove } = element;
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    remove.call(element);
  };
  return element;
}

function withSheets(work: () => void): void {
  const { createElement } = document;
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    // The policy forbids even an empty style element.
    if (name === 'style') return asSheet(createElement.call(document, 'template'));
    return createElement.call(document, name, options);
  }) as typeof document.createElement;
  try {
    work();
  } finally {
    document.createElement = createElement;
  }
}

const COLOURS = {
  background: '#0b1418',
  foreground: '#d6e2e6',
  cursor: '#7fd3e8',
  selectionBackground: '#2b4a55',
  black: '#1d2a30',
  red: '#f2777a',
  green: '#8fd694',
  yellow: '#e8c67a',
  blue: '#7ab8f0',
  magenta: '#d3a0e8',
  cyan: '#7fd3e8',
  white: '#d6e2e6',
  brightBlack: '#8298a1',
  brightRed: '#ff9a9c',
  brightGreen: '#b0ecb4',
  brightYellow: '#ffe09c',
  brightBlue: '#a5d2ff',
  brightMagenta: '#ecc2fb',
  brightCyan: '#aceefb',
  brightWhite: '#ffffff',
};

/** The server takes at most 64 KiB in one message; a paste may be longer. */
const MESSAGE_BYTES = 16 * 1024;

export function openScreen(box: HTMLElement, socket: WebSocket): Screen {
  const terminal = new Terminal({
    theme: COLOURS,
    fontFamily: 'ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
    fontSize: 13,
    scrollback: 5_000,
    screenReaderMode: true,
    cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  withSheets(() => terminal.open(box));
  fit.fit();
  const resized = new ResizeObserver(() => fit.fit());
  resized.observe(box);
  socket.binaryType = 'arraybuffer';
  socket.addEventListener('open', () => {
    terminal.focus();
    // The line is silent until it gets input: this brings the prompt.
    socket.send('\r');
  });
  socket.addEventListener('message', ({ data }) => terminal.write(new Uint8Array(data as ArrayBuffer)));
  const sent = new TextEncoder();
  terminal.onData((text) => {
    if (socket.readyState !== WebSocket.OPEN) return;
    const bytes = sent.encode(text);
    for (let at = 0; at < bytes.length; at += MESSAGE_BYTES)
      socket.send(bytes.subarray(at, at + MESSAGE_BYTES));
  });
  terminal.attachCustomKeyEventHandler((event) => {
    if (!(event.key === 'Escape' && event.ctrlKey && event.shiftKey)) return true;
    terminal.blur();
    document.getElementById('content')?.focus();
    return false;
  });
  let disposed = false;
  return {
    dispose: () => {
      if (disposed) return;
      disposed = true;
      resized.disconnect();
      terminal.dispose();
    },
  };
}
