/** The tables of secrets. */
import type { Generated } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';

export interface SecretTables {
  secrets: {
    serial: Generated<string>;
    instance_id: InstanceId;
    name: string;
    hosts: string[];
    placeholder: string;
    value: Buffer | null;
    updated_at: Generated<Date>;
  };
  instance_authorities: {
    instance_id: InstanceId;
    certificate: string;
    private_key: Buffer;
    created_at: Generated<Date>;
  };
}
