/** The group of every VM's process, which may traverse the folders above the data folder. */
export const VM_GID = 2_000_000;
