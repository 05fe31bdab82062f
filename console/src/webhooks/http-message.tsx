/** A request or an answer: its first line, headers and body. JSON is indented. */
interface Props {
  readonly first: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export function HttpMessage({ first, headers, body }: Props) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return (
    <pre class="http-message">
      {[first, ...lines].join('\n')}
      {body !== '' && `\n\n${readable(body)}`}
    </pre>
  );
}

function readable(body: string): string {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}
