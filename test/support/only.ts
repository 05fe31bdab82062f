/**
 * Makes stand-ins for objects that the code under test gets and mostly does not use, such as the context of a whole
 * host. The parts that a test gives have their real types. The code fails when it uses a part that the test did not
 * give.
 */

type Whole =
  | string
  | number
  | bigint
  | boolean
  | symbol
  | null
  | undefined
  | ((...given: never[]) => unknown);
export type Parts<T> = T extends Whole | readonly unknown[]
  ? T
  : { readonly [Name in keyof T]?: Parts<T[Name]> };

/** What a language feature asks of any object: `await`, `JSON.stringify`. */
const ASKED_OF_ALL: ReadonlySet<string | symbol> = new Set(['then', 'toJSON']);
const wrapped = new WeakMap<object, object>();

export function only<T extends object>(given: Parts<T>): T {
  return standIn(given, '') as T;
}

/** Plain objects in it are stand-ins too; everything else is the real thing. */
function standIn(given: unknown, path: string): unknown {
  if (typeof given !== 'object' || given === null || Object.getPrototypeOf(given) !== Object.prototype)
    return given;
  const known = wrapped.get(given);
  if (known) return known;
  const proxy = new Proxy(given, {
    get(parts, name) {
      if (name in parts || typeof name === 'symbol' || ASKED_OF_ALL.has(name))
        return standIn(Reflect.get(parts, name), `${path}.${String(name)}`);
      throw new Error(`the stand-in has no ${path}.${name}, which the code under test touches`);
    },
  });
  wrapped.set(given, proxy);
  return proxy;
}
