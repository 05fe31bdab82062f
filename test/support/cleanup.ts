/** Where a helper leaves what must end: a test's context, or the hooks of its file. */
export interface Cleanup {
  after(end: () => unknown): void;
}
