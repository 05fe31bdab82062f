/** Ends the choice of a value in charts. */
import { useEffect } from 'preact/hooks';

/** A finger leaves its value chosen when it lifts. A press beside the charts forgets it. */
export function useForgetting(is_chosen: boolean, choose: (at_ms: null) => void): void {
  useEffect(() => {
    if (!is_chosen) return;
    const forget = ({ target }: PointerEvent) => {
      if (!(target instanceof Element && target.closest('.chart-plot'))) choose(null);
    };
    document.addEventListener('pointerdown', forget);
    return () => document.removeEventListener('pointerdown', forget);
  }, [is_chosen, choose]);
}
