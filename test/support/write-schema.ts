/** Writes `schema.sql` and `tables.ts` of `src/control-plane/db` from a freshly migrated database. Run it after changing a migration. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { startDatabase } from './database.ts';
import { dumpSchema } from './dump-schema.ts';
import { tableTypes } from './table-types.ts';

const FOLDER = join(import.meta.dirname, '..', '..', 'src', 'control-plane', 'db');
const database = await startDatabase();
try {
  await writeFile(join(FOLDER, 'schema.sql'), await dumpSchema(database.url));
  await writeFile(join(FOLDER, 'tables.ts'), await tableTypes(database.url));
} finally {
  await database.close();
}
