/** Reads the fields of a protobuf message by their numbers. */
import assert from 'node:assert/strict';

export class ProtobufReader {
  readonly #fields: { readonly field: number; readonly value: Buffer | number }[] = [];

  constructor(message: Buffer) {
    for (let at = 0; at < message.length; ) {
      const varint = () => {
        let value = 0;
        for (let factor = 1; ; factor *= 128) {
          const byte = message[at++] ?? 0;
          value += (byte & 127) * factor;
          if (byte < 128) return value;
        }
      };
      const tag = varint();
      const taken = (length: number) => {
        at += length;
        return message.subarray(at - length, at);
      };
      const kind = tag & 7;
      assert([0, 1, 2, 5].includes(kind), `wire type ${kind}`);
      const value = kind === 0 ? varint() : kind === 1 ? taken(8) : kind === 5 ? taken(4) : taken(varint());
      this.#fields.push({ field: Math.floor(tag / 8), value });
    }
  }

  messages(field: number): ProtobufReader[] {
    return this.#all(field).flatMap((value) =>
      typeof value === 'number' ? [] : [new ProtobufReader(value)],
    );
  }

  bytes(field: number): Buffer {
    const [value] = this.#all(field);
    return typeof value === 'object' ? value : Buffer.alloc(0);
  }

  text(field: number): string {
    return this.bytes(field).toString();
  }

  number(field: number): number {
    const [value] = this.#all(field);
    return typeof value === 'number' ? value : 0;
  }

  #all(field: number): (Buffer | number)[] {
    return this.#fields.filter((each) => each.field === field).map(({ value }) => value);
  }
}
