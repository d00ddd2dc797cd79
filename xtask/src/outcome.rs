//! What a chore has to say when it fails.

pub(crate) type Outcome = Result<(), String>;
