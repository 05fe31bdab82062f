/**
 * Contains exceptions of event handlers in a process that all tenants share. An exception ends only the connection,
 * stream or message whose event was handled, where Node would end the process.
 *
 * `contain` wraps an emitter, and with it every emitter that its events hand over: a server's connections, a
 * connection's requests, a request's answer. So only servers and clients must be wrapped where they are made;
 * test/house/layers.test.ts checks that they are. A promise that a handler starts is not covered: its failure must go
 * to {@link endAfterFault}.
 */
import { EventEmitter } from 'node:events';

/** An error that ends a stream can come back as the event of that. */
const reported = new WeakSet<object>();
let report = (fault: Error): void => void process.stderr.write(`${fault.stack}\n`);

/** Where this process logs what handlers threw; stderr by default. A throw is a fault of ours, whoever provoked it. */
export function reportThrows(to: (fault: Error) => void): void {
  report = to;
}

export function contain<Emitter extends EventEmitter>(emitter: Emitter): Emitter {
  const plain: EventEmitter = emitter;
  plain.emit = emitContained;
  return emitter;
}

function emitContained(this: EventEmitter, event: string | symbol, ...handed: unknown[]): boolean {
  try {
    for (const each of handed) if (each instanceof EventEmitter && each.emit !== emitContained) contain(each);
    const { emit } = Object.getPrototypeOf(this) as EventEmitter;
    return Reflect.apply(emit, this, [event, ...handed]);
  } catch (error) {
    endAfterFault(this, ...handed)(error);
    return true;
  }
}

/** Reports a fault, and ends those whose work has failed by it. */
export function endAfterFault(...failed: readonly unknown[]): (error: unknown) => void {
  return (error) => {
    const fault = error instanceof Error ? error : new Error(String(error));
    if (!reported.has(fault)) report(fault);
    reported.add(fault);
    for (const each of failed) end(each, fault);
  };
}

/** Servers, and sockets of UDP, have no end of their own here: they go on. */
function end(each: unknown, fault: Error): void {
  if (each instanceof EventEmitter && 'destroy' in each && typeof each.destroy === 'function')
    each.destroy(fault);
}
