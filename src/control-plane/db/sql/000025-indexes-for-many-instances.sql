-- expand
-- What would otherwise read whole tables that grow with the number of instances.
create index instances_deleting on instances (id) where deleting;
create index instances_maker on instances (created_by);
-- The deletion of an instance.
create index flushes_instance on flushes (instance_id);
create index console_tickets_instance on console_tickets (instance_id);
create index vms_failed on vms (instance_id) where state = 'failed';
