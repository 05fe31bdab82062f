/** A QR code for a terminal: two rows of modules a line, black on white in any colour scheme, because cameras need that. */
const BLACK_ON_WHITE = '\u001b[30;107m';
const RESET = '\u001b[0m';
const HALVES = { true: { true: '█', false: '▀' }, false: { true: '▄', false: ' ' } } as const;
const half = (upper: boolean, lower: boolean) => HALVES[`${upper}`][`${lower}`];

export async function qrCode(text: string): Promise<string> {
  const { encode } = await import('uqr');
  const { data } = encode(text, { border: 2 });
  let lines = '';
  for (let y = 0; y < data.length; y += 2) {
    const upper = data[y] ?? [];
    const lower = data[y + 1] ?? [];
    const cells = upper.map((dark, x) => half(dark, lower[x] ?? false)).join('');
    lines += `${BLACK_ON_WHITE}${cells}${RESET}\n`;
  }
  return lines;
}
