# Written by `npm run openapi`; do not change by hand.
"""Each operation of the API, for `Berth.call` and `Berth.list`."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import types
from ._operation import ListOperation, Operation

register: Operation[types.SessionResponse] = Operation("POST", "/v1/auth/register")
"""Create an account; needs open sign-ups or an invitation"""
login: Operation[types.SessionResponse] = Operation("POST", "/v1/auth/login")
"""Open a session"""
refresh: Operation[types.RefreshResponse] = Operation("POST", "/v1/auth/refresh")
"""Get a new session token with the cookie __Host-berth_refresh, which is replaced"""
logout: Operation[None] = Operation("POST", "/v1/auth/logout", answer="nothing")
"""End this session"""
change_password: Operation[None] = Operation("POST", "/v1/auth/password", answer="nothing")
"""Change the password; the other sessions end"""
request_password_reset: Operation[None] = Operation("POST", "/v1/auth/password-reset", answer="nothing")
"""Mail a reset token to the address, if it has an account"""
confirm_password_reset: Operation[None] = Operation("POST", "/v1/auth/password-reset/confirm", answer="nothing")
"""Set a new password with the mailed token; every session ends"""
begin_oidc_sudo: Operation[types.OidcSudoStart] = Operation("POST", "/v1/auth/oidc/sudo")
"""Begin a sudo grant by a new login at the OpenID provider"""
ask_for_device_login: Operation[types.DeviceLoginStart] = Operation("POST", "/v1/auth/device-logins")
"""Begin a login that a person confirms in the console"""
take_device_login: Operation[types.SessionResponse] = Operation("POST", "/v1/auth/device-logins/token")
"""Open the session of a confirmed login, once"""
get_device_login: Operation[types.DeviceLogin] = Operation("GET", "/v1/auth/device-logins/{user_code}")
"""Who asks for a login"""
refuse_device_login: Operation[None] = Operation("DELETE", "/v1/auth/device-logins/{user_code}", answer="nothing")
"""Refuse a login"""
confirm_device_login: Operation[None] = Operation("POST", "/v1/auth/device-logins/{user_code}/confirm", answer="nothing")
"""Let the program that shows this code log in as the caller"""
grant_sudo: Operation[types.SudoGrantResponse] = Operation("POST", "/v1/auth/sudo")
"""Re-enter the password, which allows this session destructive calls for five minutes"""
list_sessions: ListOperation[types.ListSessionsResponse, types.Session] = ListOperation("GET", "/v1/auth/sessions")
"""List the caller's sessions"""
revoke_other_sessions: Operation[types.RevokeOtherSessionsResponse] = Operation("DELETE", "/v1/auth/sessions")
"""End all of the caller's sessions but this one"""
revoke_session: Operation[None] = Operation("DELETE", "/v1/auth/sessions/{id}", answer="nothing")
"""End a session"""
get_me: Operation[types.User] = Operation("GET", "/v1/me")
"""Get the caller's account"""
change_me: Operation[types.User] = Operation("PATCH", "/v1/me")
"""Change the caller's name"""
delete_me: Operation[None] = Operation("DELETE", "/v1/me", answer="nothing")
"""Delete the account and the organisations that only it belongs to"""
change_email: Operation[None] = Operation("PUT", "/v1/me/email", answer="nothing")
"""Change the address; it takes effect when the token sent there is confirmed"""
confirm_email: Operation[None] = Operation("POST", "/v1/me/email/confirm", answer="nothing")
"""Confirm the first or a new address with the token sent there"""
list_ssh_keys: ListOperation[types.ListSshKeysResponse, types.SshKey] = ListOperation("GET", "/v1/me/ssh-keys")
"""List the caller's SSH keys; for an API key, those that grant access in its organisation"""
add_ssh_key: Operation[types.SshKey] = Operation("POST", "/v1/me/ssh-keys", takes_idempotency_key=True)
"""Register an SSH key; one that an API key registers belongs to the API key's organisation"""
revoke_ssh_key: Operation[None] = Operation("DELETE", "/v1/me/ssh-keys/{id}", answer="nothing")
"""Revoke an SSH key"""
list_mfa_factors: ListOperation[types.ListMfaFactorsResponse, types.MfaFactor] = ListOperation("GET", "/v1/me/mfa/factors")
"""List the caller's second factors"""
add_mfa_factor: Operation[types.AddMfaFactorResponse] = Operation("POST", "/v1/me/mfa/factors")
"""Add a second factor; confirm it within the hour"""
verify_mfa_factor: Operation[types.VerifyMfaFactorResponse] = Operation("POST", "/v1/me/mfa/factors/{id}/verify")
"""Confirm a second factor with its code, or with the browser's answer to its options"""
remove_mfa_factor: Operation[None] = Operation("DELETE", "/v1/me/mfa/factors/{id}", answer="nothing")
"""Remove a second factor; with the last one the recovery codes are removed"""
passkey_options: Operation[types.PasskeyOptionsResponse] = Operation("POST", "/v1/auth/passkey/options")
"""Get the options for a login with a passkey, alone or after the password"""
login_by_passkey: Operation[types.SessionResponse] = Operation("POST", "/v1/auth/passkey")
"""Open a session with a passkey alone"""
create_api_key: Operation[types.CreateApiKeyResponse] = Operation("POST", "/v1/api-keys", takes_idempotency_key=True)
"""Create an API key"""
list_api_keys: ListOperation[types.ListApiKeysResponse, types.ApiKey] = ListOperation("GET", "/v1/api-keys")
"""List the caller's API keys; for owners and admins, also those of service accounts"""
get_api_key: Operation[types.ApiKey] = Operation("GET", "/v1/api-keys/{id}")
"""Get an API key, without the key itself"""
revoke_api_key: Operation[None] = Operation("DELETE", "/v1/api-keys/{id}", answer="nothing")
"""Revoke an API key at once"""
rotate_api_key: Operation[types.CreateApiKeyResponse] = Operation("POST", "/v1/api-keys/{id}/rotate")
"""Rotate an API key: give it a new secret under the same id"""
list_service_accounts: ListOperation[types.ListServiceAccountsResponse, types.ServiceAccount] = ListOperation("GET", "/v1/service-accounts")
"""List the organisation's service accounts"""
create_service_account: Operation[types.ServiceAccount] = Operation("POST", "/v1/service-accounts", takes_idempotency_key=True)
"""Create a service account: a holder of API keys that is not a person"""
get_service_account: Operation[types.ServiceAccount] = Operation("GET", "/v1/service-accounts/{id}")
"""Get a service account"""
delete_service_account: Operation[None] = Operation("DELETE", "/v1/service-accounts/{id}", answer="nothing")
"""Delete a service account; its keys end at once"""
list_orgs: ListOperation[types.ListOrgsResponse, types.Org] = ListOperation("GET", "/v1/orgs")
"""List the organisations of the caller, the last joined first"""
create_org: Operation[types.Org] = Operation("POST", "/v1/orgs", takes_idempotency_key=True)
"""Create an organisation that the caller owns"""
get_org: Operation[types.Org] = Operation("GET", "/v1/orgs/{id}")
"""Get an organisation"""
change_org: Operation[types.Org] = Operation("PATCH", "/v1/orgs/{id}")
"""Rename an organisation"""
get_org_quota: Operation[types.OrgQuota] = Operation("GET", "/v1/orgs/{id}/quota")
"""Get the quotas of an organisation and their use"""
change_billing_email: Operation[types.Org] = Operation("PUT", "/v1/orgs/{id}/billing-email")
"""Change the billing address; the old and the new address get a mail"""
get_operator_status: Operation[types.OperatorStatus] = Operation("GET", "/v1/operator")
"""Get the state of the installation: findings, storage, mail"""
list_operator_hosts: ListOperation[types.ListOperatorHostsResponse, types.OperatorHost] = ListOperation("GET", "/v1/operator/hosts")
"""List the hosts, by name"""
list_operator_images: ListOperation[types.ListOperatorImagesResponse, types.OperatorImageVersion] = ListOperation("GET", "/v1/operator/images")
"""List the stored versions of images, by image, newest first"""
list_operator_organisations: ListOperation[types.ListOperatorOrganisationsResponse, types.OperatorOrganisation] = ListOperation("GET", "/v1/operator/organisations")
"""List all organisations with their quotas and what they use"""
list_members: ListOperation[types.ListMembersResponse, types.Member] = ListOperation("GET", "/v1/orgs/{id}/members")
"""List the members of an organisation, the newest first"""
get_member: Operation[types.Member] = Operation("GET", "/v1/orgs/{id}/members/{user_id}")
"""Get a member; any member may get their own membership"""
change_member: Operation[types.Member] = Operation("PATCH", "/v1/orgs/{id}/members/{user_id}")
"""Change the role of a member; only owners make and unmake owners"""
remove_member: Operation[None] = Operation("DELETE", "/v1/orgs/{id}/members/{user_id}", answer="nothing")
"""Remove a member, or leave the organisation"""
create_invitation: Operation[types.Invitation] = Operation("POST", "/v1/orgs/{id}/invitations", takes_idempotency_key=True)
"""Invite an address; the mailed token works once, within 7 days"""
list_invitations: ListOperation[types.ListInvitationsResponse, types.ListedInvitation] = ListOperation("GET", "/v1/orgs/{id}/invitations")
"""List the invitations that are open"""
delete_invitation: Operation[None] = Operation("DELETE", "/v1/orgs/{id}/invitations/{invitation_id}", answer="nothing")
"""Withdraw an invitation"""
accept_invitation: Operation[types.Org] = Operation("POST", "/v1/invitations/accept")
"""Accept an invitation to the account's address, and join its organisation"""
list_audit: ListOperation[types.ListAuditResponse, types.AuditEntry] = ListOperation("GET", "/v1/audit")
"""List the audit log: who did what, when and from where"""
list_images: ListOperation[types.ListImagesResponse, types.Image] = ListOperation("GET", "/v1/images")
"""List the images for instances, by name"""
create_instance: Operation[types.Instance] = Operation("POST", "/v1/instances", takes_idempotency_key=True)
"""Create an instance"""
list_instances: ListOperation[types.ListInstancesResponse, types.Instance] = ListOperation("GET", "/v1/instances")
"""List the organisation's instances"""
get_instance: Operation[types.Instance] = Operation("GET", "/v1/instances/{id}")
"""Get an instance"""
change_instance: Operation[types.Instance] = Operation("PATCH", "/v1/instances/{id}")
"""Change an instance"""
delete_instance: Operation[types.Instance] = Operation("DELETE", "/v1/instances/{id}")
"""Delete an instance and its disk"""
list_generations: ListOperation[types.ListGenerationsResponse, types.Generation] = ListOperation("GET", "/v1/instances/{id}/generations")
"""List the generations of the disk, which can be restored or forked"""
change_generation: Operation[types.Generation] = Operation("PATCH", "/v1/instances/{id}/generations/{generation}")
"""Name or pin a generation"""
restore_instance: Operation[types.Instance] = Operation("POST", "/v1/instances/{id}/restore", takes_idempotency_key=True)
"""Restore an older generation, as a new one; the VM must be stopped"""
fork_instance: Operation[types.Instance] = Operation("POST", "/v1/instances/{id}/fork", takes_idempotency_key=True)
"""Fork an instance: create one whose disk begins as a generation of this one"""
get_vm: Operation[types.Vm] = Operation("GET", "/v1/instances/{id}/vm")
"""Get the VM; with `wait`, once it reaches that state, fails, or the timeout passes"""
start_vm: Operation[types.Vm] = Operation("POST", "/v1/instances/{id}/vm", takes_idempotency_key=True)
"""Start the VM"""
stop_vm: Operation[types.Vm] = Operation("DELETE", "/v1/instances/{id}/vm")
"""Stop the VM; its disk persists"""
restart_vm: Operation[types.Vm] = Operation("POST", "/v1/instances/{id}/vm/restart", takes_idempotency_key=True)
"""Reboot the guest; the VM and its disk stay, and nothing is flushed"""
suspend_vm: Operation[types.Vm] = Operation("POST", "/v1/instances/{id}/vm/suspend", takes_idempotency_key=True)
"""Save memory and disk, then end the VM; the next start resumes it"""
flush_vm: Operation[types.FlushReceipt] = Operation("POST", "/v1/instances/{id}/vm/flush", takes_idempotency_key=True)
"""Flush the disk: make everything written so far durable"""
get_console_log: Operation[str] = Operation("GET", "/v1/instances/{id}/vm/console", answer="text")
"""Get the end of the serial console log"""
create_console_ticket: Operation[types.ConsoleTicket] = Operation("POST", "/v1/instances/{id}/vm/console/ticket")
"""Create a ticket for the live serial console"""
list_denied_egress: ListOperation[types.ListDeniedEgressResponse, types.DeniedDestination] = ListOperation("GET", "/v1/instances/{id}/vm/egress/denied")
"""List what the VM was denied to reach"""
exec_in_vm: Operation[types.ExecResult] = Operation("POST", "/v1/instances/{id}/vm/exec")
"""Run a command in the guest as root, and wait until it ends"""
create_exec: Operation[types.Exec] = Operation("POST", "/v1/instances/{id}/execs", takes_idempotency_key=True)
"""Run a command in the guest, which goes on without its caller"""
list_execs: ListOperation[types.ListExecsResponse, types.Exec] = ListOperation("GET", "/v1/instances/{id}/execs")
"""List an instance's execs: all that run, and the last 100 that have ended"""
get_exec: Operation[types.Exec] = Operation("GET", "/v1/instances/{id}/execs/{exec_id}")
"""Get an exec"""
kill_exec: Operation[None] = Operation("DELETE", "/v1/instances/{id}/execs/{exec_id}", answer="nothing")
"""End an exec: SIGKILL to its process group; its record stays"""
signal_exec: Operation[None] = Operation("POST", "/v1/instances/{id}/execs/{exec_id}/signal", answer="nothing")
"""Send a signal to the process group of an exec"""
resize_exec: Operation[None] = Operation("POST", "/v1/instances/{id}/execs/{exec_id}/resize", answer="nothing")
"""Set the size of the terminal of an exec"""
create_exec_ticket: Operation[types.ExecTicket] = Operation("POST", "/v1/instances/{id}/execs/{exec_id}/ticket")
"""Create a ticket for a stream to an exec"""
get_exec_output: Operation[bytes] = Operation("GET", "/v1/instances/{id}/execs/{exec_id}/output", answer="bytes")
"""Get the output of an exec; with `follow`, as it comes"""
write_exec_input: Operation[None] = Operation("POST", "/v1/instances/{id}/execs/{exec_id}/stdin", answer="nothing")
"""Send bytes to the input of an exec, and with `eof=true` its end"""
list_files: ListOperation[types.ListFilesResponse, types.File] = ListOperation("GET", "/v1/instances/{id}/files/list")
"""List the entries of a folder, sorted by name"""
delete_file: Operation[None] = Operation("DELETE", "/v1/instances/{id}/files", answer="nothing")
"""Delete a file, a link or a folder"""
read_file: Operation[bytes] = Operation("GET", "/v1/instances/{id}/files", answer="bytes")
"""Read a file of the guest"""
write_file: Operation[types.File] = Operation("PUT", "/v1/instances/{id}/files")
"""Write a file of the guest"""
move_file: Operation[types.File] = Operation("POST", "/v1/instances/{id}/files/move")
"""Move or rename a file, a link or a folder"""
create_directory: Operation[types.File] = Operation("POST", "/v1/instances/{id}/files/directory")
"""Make a folder, and the missing ones above it"""
get_vm_metrics: Operation[types.VmMetrics] = Operation("GET", "/v1/instances/{id}/vm/metrics")
"""Get the resource usage of the VM, now and over the last hour"""
get_metric_history: Operation[types.MetricHistory] = Operation("GET", "/v1/instances/{id}/metrics")
"""Get the history of the instance's resource usage"""
get_ssh: Operation[types.ConnectionDetails] = Operation("GET", "/v1/instances/{id}/ssh")
"""Get the SSH connection details of the running VM"""
get_key_set: Operation[types.KeySet] = Operation("GET", "/v1/instances/{id}/ssh-keys")
"""Get the key set of the instance: the SSH keys that may log in"""
replace_key_set: Operation[types.KeySet] = Operation("PUT", "/v1/instances/{id}/ssh-keys")
"""Replace the key set of the instance"""
list_org_ssh_keys: ListOperation[types.ListOrgSshKeysResponse, types.KeySetKey] = ListOperation("GET", "/v1/orgs/{id}/ssh-keys")
"""List the SSH keys of an organisation's members, which a key set can hold"""
create_port: Operation[types.Port] = Operation("POST", "/v1/instances/{id}/ports", takes_idempotency_key=True)
"""Publish a port of the guest under a URL"""
list_ports: ListOperation[types.ListPortsResponse, types.Port] = ListOperation("GET", "/v1/instances/{id}/ports")
"""List an instance's HTTP ports"""
get_port: Operation[types.Port] = Operation("GET", "/v1/instances/{id}/ports/{port_id}")
"""Get an HTTP port"""
change_port: Operation[types.Port] = Operation("PATCH", "/v1/instances/{id}/ports/{port_id}")
"""Change who has access to an HTTP port"""
delete_port: Operation[None] = Operation("DELETE", "/v1/instances/{id}/ports/{port_id}", answer="nothing")
"""Delete an HTTP port; its hostname is never assigned again"""
open_port: Operation[types.PortTicket] = Operation("POST", "/v1/instances/{id}/ports/{port_id}/open")
"""Get a URL that opens a private port in a browser"""
add_port_hostname: Operation[types.CustomHostname] = Operation("POST", "/v1/instances/{id}/ports/{port_id}/hostnames", takes_idempotency_key=True)
"""Add a hostname of your own to an HTTP port"""
delete_port_hostname: Operation[None] = Operation("DELETE", "/v1/instances/{id}/ports/{port_id}/hostnames/{hostname}", answer="nothing")
"""Remove a hostname of your own from an HTTP port"""
set_secret: Operation[None] = Operation("PUT", "/v1/instances/{id}/secrets/{name}", answer="nothing")
"""Create a secret, or replace its value and hosts"""
delete_secret: Operation[None] = Operation("DELETE", "/v1/instances/{id}/secrets/{name}", answer="nothing")
"""Delete a secret; new sessions do not have its variable"""
list_secrets: ListOperation[types.ListSecretsResponse, types.Secret] = ListOperation("GET", "/v1/instances/{id}/secrets")
"""List an instance's secrets, without values"""
create_webhook: Operation[types.CreateWebhookResponse] = Operation("POST", "/v1/webhooks", takes_idempotency_key=True)
"""Create a webhook; this sends nothing"""
list_webhooks: ListOperation[types.ListWebhooksResponse, types.Webhook] = ListOperation("GET", "/v1/webhooks")
"""List the organisation's webhooks"""
get_webhook: Operation[types.Webhook] = Operation("GET", "/v1/webhooks/{id}")
"""Get a webhook, without its secret"""
change_webhook: Operation[types.Webhook] = Operation("PATCH", "/v1/webhooks/{id}")
"""Change, disable or enable a webhook"""
delete_webhook: Operation[None] = Operation("DELETE", "/v1/webhooks/{id}", answer="nothing")
"""Delete a webhook and its deliveries"""
rotate_webhook_secret: Operation[types.CreateWebhookResponse] = Operation("POST", "/v1/webhooks/{id}/rotate-secret")
"""Rotate the secret of a webhook; for a grace period both sign"""
list_webhook_deliveries: ListOperation[types.ListWebhookDeliveriesResponse, types.WebhookDelivery] = ListOperation("GET", "/v1/webhooks/{id}/deliveries")
"""List the deliveries of a webhook, the newest events first"""
get_webhook_delivery: Operation[types.WebhookDeliveryDetail] = Operation("GET", "/v1/webhooks/{id}/deliveries/{delivery_id}")
"""Get a delivery with its request and the answer to each attempt"""
ping_webhook: Operation[types.PingWebhookResponse] = Operation("POST", "/v1/webhooks/{id}/ping", takes_idempotency_key=True)
"""Send the event `webhook.ping` to this webhook"""
redeliver_webhook_delivery: Operation[types.WebhookDelivery] = Operation("POST", "/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver", takes_idempotency_key=True)
"""Redeliver: send a delivery again with the same `webhook-id`, whatever its outcome was"""
replay_webhook: Operation[types.ReplayWebhookResponse] = Operation("POST", "/v1/webhooks/{id}/replay", takes_idempotency_key=True)
"""Send every event since a time again, including those missed while disabled"""
list_notifications: ListOperation[types.ListNotificationsResponse, types.Notification] = ListOperation("GET", "/v1/notifications")
"""List the caller's notifications; for an API key, those about its creator's account or its organisation"""
count_unread_notifications: Operation[types.CountUnreadNotificationsResponse] = Operation("GET", "/v1/notifications/unread-count")
"""Count the unread notifications"""
mark_notification: Operation[types.Notification] = Operation("PATCH", "/v1/notifications/{id}")
"""Mark a notification as read or unread"""
mark_all_notifications: Operation[types.MarkAllNotificationsResponse] = Operation("POST", "/v1/notifications/read-all")
"""Mark all present notifications as read, or those up to `before`"""
get_notification_preferences: Operation[types.NotificationPreferences] = Operation("GET", "/v1/notifications/preferences")
"""Get which kinds of notifications are also mailed to the caller"""
set_notification_preferences: Operation[types.NotificationPreferences] = Operation("PUT", "/v1/notifications/preferences")
"""Choose which kinds are also mailed; kinds that are not named are, and security kinds always are"""
stream_notifications: Operation[str] = Operation("GET", "/v1/notifications/stream", answer="text")
"""Stream the caller's notifications as they are raised, and the unread count"""
list_usage: ListOperation[types.ListUsageResponse, types.Usage] = ListOperation("GET", "/v1/usage")
"""List what the organisation's instances used"""
list_events: ListOperation[types.ListEventsResponse, types.Event] = ListOperation("GET", "/v1/events")
"""List the organisation's events of the last 30 days"""
stream_events: Operation[str] = Operation("GET", "/v1/events/stream", answer="text")
"""Stream the organisation's events as they happen"""
