/**
 * Compiles the schemas of a route at its first request. All of them take about a second of CPU time at the start, and most
 * installations never use most routes. Each is compiled once, by Fastify's own compilers.
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

/** Fastify reads the errors from the function, where ajv puts them. */
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

/** Node gives header names in lower case. Fastify adapts the schema only where it compiles it itself. */
function withLowerCaseHeaders(route: Route): Route {
  const { properties } = route.schema;
  if (route.httpPart !== 'headers' || !properties) return route;
  const lowered = Object.entries(properties).map(([name, schema]) => [name.toLowerCase(), schema]);
  return { ...route, schema: { ...route.schema, properties: Object.fromEntries(lowered) } };
}
