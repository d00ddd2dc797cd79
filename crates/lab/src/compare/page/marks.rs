//! The marks of a store in all plots.

use crate::compare::report::Order;

/// The number of stores with a colour of their own.
pub(super) const COLOURS: usize = 6;

/// The classes of a mark: the store's colour, and how its order is drawn.
pub(super) fn classes(store: usize, order: Order) -> String {
    format!("c{} {}", store % COLOURS, order.word())
}
