/** What is used of Eleventy, which brings no types. */
declare module '@11ty/eleventy' {
  interface Settings {
    setIncludesDirectory(folder: string): void;
    setTemplateFormats(formats: readonly string[]): void;
    setLibrary(format: string, library: object): void;
    addTemplate(path: string, text: string, data: object): void;
  }
  export class Eleventy {
    constructor(
      input: string,
      output: string,
      options: { quietMode: boolean; config: (settings: Settings) => void },
    );
    disableLogger(): void;
    write(): Promise<void>;
  }
}
