/** What the search finds: `site/search-index.ts` writes it, `search.ts` reads it. */
export interface Found {
  readonly address: string;
  readonly page: string;
  readonly title: string;
  readonly text: string;
}
