/** What a flush can say of the file systems that it saved, in plain words (`consistency` of the API). */
import type { Generation } from '../../../client/src/berth.ts';

interface Words {
  readonly short: string;
  readonly long: string;
}

export const CONSISTENCY: Readonly<Record<Generation['consistency'], Words>> = {
  filesystem: {
    short: 'complete files',
    long: 'Complete: the guest wrote everything out and paused its file systems for the flush.',
  },
  crash: {
    short: 'as after a power cut',
    long: 'As after a power cut: the guest did not answer. Its file systems repair themselves at the next start, and what it held in memory is missing.',
  },
  offline: {
    short: 'saved after the VM ended',
    long: 'The VM did not run: the files are as they were when it ended.',
  },
};
