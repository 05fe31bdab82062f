/** Who reads objects. */
export interface ReaderTables {
  object_readers: { id: string; until: Date };
}
