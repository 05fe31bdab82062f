/** What a host without credentials for the bucket may do with single objects: requests to the store that the control plane has signed. */
import { Type } from 'typebox';
import { closed, listOf, matching, named, nullable, type Of, oneOf, Sha256, whole } from './schemas.ts';

/** Of one call. */
const PERMISSIONS_MAX = 64;

const Key = matching('^[A-Za-z0-9._/-]+$', 512);

export const ObjectRequest = Type.Union([
  closed({ method: oneOf(['GET', 'HEAD']), key: Key }),
  /** Creates the object, with exactly these bytes. There are some: see object-store/sign-request.ts. */
  closed({ method: Type.Literal('PUT'), key: Key, size_bytes: whole(1, 2 ** 25), sha256: Sha256 }),
]);
export type ObjectRequest = Of<typeof ObjectRequest>;

export const SignedRequest = named('SignedRequest', {
  url: matching('^https?://[\\x21-\\x7e]+$', 2_048),
  /** To be sent as they are; a `range` may be added. Valid for 15 minutes. */
  headers: listOf(
    closed({ name: matching('^[a-z0-9-]+$', 64), value: matching('^[\\x20-\\x7e]*$', 8_192) }),
    32,
  ),
});
export type SignedRequest = Of<typeof SignedRequest>;

export const ObjectPermissionsRequest = named('ObjectPermissionsRequest', {
  objects: listOf(ObjectRequest, PERMISSIONS_MAX),
});
/** In the order of the requests. Null: the host may not do that now. */
export const ObjectPermissionsResponse = named('ObjectPermissionsResponse', {
  permissions: listOf(nullable(SignedRequest), PERMISSIONS_MAX),
});
export type ObjectPermissionsResponse = Of<typeof ObjectPermissionsResponse>;
