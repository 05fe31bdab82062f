/** Whether something has changed since it was last looked at, for the one who looks. */
export class News {
  #there = true;
  #wake: () => void = () => undefined;

  get there(): boolean {
    return this.#there;
  }

  come(): void {
    this.#there = true;
    this.#wake();
  }

  /** All that has come is seen from here on. */
  seen(): void {
    this.#there = false;
  }

  async wait(): Promise<void> {
    if (this.#there) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
  }
}
