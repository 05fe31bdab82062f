/** Writes `src/control-plane/db/schema.sql` from a freshly migrated database. Run it after adding a migration. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { startDatabase } from './database.ts';
import { dumpSchema } from './dump-schema.ts';

const database = await startDatabase();
try {
  await writeFile(
    join(import.meta.dirname, '..', '..', 'src', 'control-plane', 'db', 'schema.sql'),
    await dumpSchema(database.url),
  );
} finally {
  await database.close();
}
