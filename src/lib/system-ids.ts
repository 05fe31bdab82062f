/** The group that every VM's process carries, and that may pass through the folders above the data folder. */
export const VM_GID = 2_000_000;
