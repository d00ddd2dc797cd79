//! The marks of a store in all plots.

use crate::compare::report::Order;
use crate::plot::COLOURS;

/// The classes of a mark: the store's colour, and how its order is drawn.
pub(super) fn classes(store: usize, order: Order) -> String {
    format!("c{} {}", store % COLOURS, order.word())
}
