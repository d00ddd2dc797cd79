//! The engine that drives a claim: it asks, waits, renews and releases. None of its types is
//! public.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod backoff;
pub(crate) mod claim_ids;
pub(crate) mod claim_state;
pub(crate) mod client;
pub(crate) mod completing;
pub(crate) mod concurrency_limit;
pub(crate) mod events;
pub(crate) mod hold;
pub(crate) mod keeper;
pub(crate) mod local_once;
pub(crate) mod local_queue;
pub(crate) mod patience;
pub(crate) mod release;
pub(crate) mod wait;
