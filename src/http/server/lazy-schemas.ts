/**
 * The schemas of a route become code at its first request, not at the start: all of them at once take about a second of
 * a processor, and most installations never use most routes. Each is compiled once, by the compilers that Fastify would
 * have taken.
 */
import AjvCompiler from '@fastify/ajv-compiler';
import SerializerSelector from '@fastify/fast-json-stringify-compiler';
import type { FastifyServerOptions } from 'fastify';

type Factories = NonNullable<NonNullable<FastifyServerOptions['schemaController']>['compilersFactory']>;

interface Route {
  readonly httpPart?: string;
  readonly schema: { readonly properties?: Readonly<Record<string, unknown>> };
}

interface Validate {
  (...args: readonly unknown[]): unknown;
  errors?: unknown;
}

/** For Fastify's `schemaController`. */
export function lazySchemas(): { compilersFactory?: Factories } {
  const validators = AjvCompiler();
  const serializers = SerializerSelector();
  return {
    compilersFactory: {
      buildValidator: ((...given: Parameters<typeof validators>) => {
        const compile = validators(...given) as (route: Route) => Validate;
        return (route: Route) => lazyValidator(() => compile(withLowerCaseHeaders(route)));
      }) as unknown as NonNullable<Factories['buildValidator']>,
      buildSerializer: (...given: Parameters<typeof serializers>) => {
        const compile = serializers(...given);
        return (route) => {
          let serialize: ReturnType<typeof compile> | undefined;
          return (body) => {
            serialize ??= compile(route);
            return serialize(body);
          };
        };
      },
    },
  };
}

/** Fastify looks for what was wrong at the function itself, as ajv leaves it there. */
function lazyValidator(compile: () => Validate): Validate {
  let compiled: Validate | undefined;
  const validate: Validate = (...args) => {
    compiled ??= compile();
    const valid = compiled(...args);
    validate.errors = compiled.errors;
    return valid;
  };
  return validate;
}

/** As Node tells the names of headers. Of schemas that it does not compile by itself Fastify leaves this to others. */
function withLowerCaseHeaders(route: Route): Route {
  const { properties } = route.schema;
  if (route.httpPart !== 'headers' || !properties) return route;
  const lowered = Object.entries(properties).map(([name, schema]) => [name.toLowerCase(), schema]);
  return { ...route, schema: { ...route.schema, properties: Object.fromEntries(lowered) } };
}
