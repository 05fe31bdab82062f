/** The request that work is done for, and the span that asked for it. */
import { Type } from 'typebox';
import { REQUEST_ID, TRACEPARENT } from '../shared/tracing.ts';
import { matching, named } from './schemas.ts';

export const TraceContext = named('TraceContext', {
  request_id: Type.Optional(matching(REQUEST_ID, 28)),
  traceparent: Type.Optional(matching(TRACEPARENT, 55)),
});
