/** The web console and the documentation, each only if something that goes into it has changed since. */
await import('../console/build.ts');
await import('../site/build.ts');
