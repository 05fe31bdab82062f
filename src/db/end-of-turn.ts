/**
 * The end of this turn of the event loop, when all has been read that the sockets brought: what waits for it goes out
 * with what the other requests of the turn ask for. One for all who wait, or their statements would be parted again.
 */
let ending: Promise<void> | undefined;

export function endOfTurn(): Promise<void> {
  ending ??= new Promise((resolve) => {
    setImmediate(() => {
      ending = undefined;
      resolve();
    });
  });
  return ending;
}
