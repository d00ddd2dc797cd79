//! Setters of the values with which stores describe themselves and their answers: each takes a
//! value and returns it changed.

/// A setter for each field, in a list of `name: type => value` with its documentation.
macro_rules! setters {
    ($($(#[$doc:meta])+ $field:ident: $type:ty => $value:expr;)+) => {
        $(
            $(#[$doc])+
            #[must_use]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $value;
                self
            }
        )+
    };
}
pub(crate) use setters;
