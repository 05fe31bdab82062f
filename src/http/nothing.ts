/** The body of a 202 that says nothing: `null` would go out as JSON, but for 204. */
export const NOTHING = undefined as unknown as null;
