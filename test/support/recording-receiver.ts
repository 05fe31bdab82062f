/**
 * A webhook receiver as a process, so that a test can kill it. Before it answers it appends a line to FILE: webhook-id,
 * SHA-256 of the body, `data.n`. While `FILE.hold` exists it records and does not answer.
 */
import { createHash } from 'node:crypto';
import { appendFileSync, existsSync } from 'node:fs';
import { createServer } from 'node:http';

const [file = '', port = '0'] = process.argv.slice(2);

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const body = Buffer.concat(chunks);
    const { data } = JSON.parse(body.toString('utf8')) as { data: { n?: number } };
    const hash = createHash('sha256').update(body).digest('hex');
    appendFileSync(file, `${request.headers['webhook-id']} ${hash} ${data.n}\n`);
    if (!existsSync(`${file}.hold`)) response.writeHead(204).end();
  });
});
server.listen(Number(port), '127.0.0.1', () => process.send?.('listening'));
process.on('disconnect', () => process.exit());
