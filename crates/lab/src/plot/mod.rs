//! Plots as SVG: for the page of `compare`, and for the pictures of the benchmarks in `benches/`. It is for no other user.

pub mod axis;
pub mod curves;

use maud::{Markup, PreEscaped, html};

/// The colours, and the marks in them. The class `c0` and so on chooses the colour.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The number of colours.
pub const COLOURS: usize = 6;

/// A plot of this size as a file of its own, with its title above it.
pub fn picture(title: &str, width: f64, height: f64, plot: &Markup) -> String {
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={"-10 -40 " (width + 20.0) " " (height + 50.0)} width=(width * 1.3) font-family="Helvetica, Arial, sans-serif" {
            style { (PreEscaped(STYLE)) }
            rect.paper x="-10" y="-40" width="100%" height="100%" {}
            text.label x="0" y="-16" { (title) }
            (plot)
        }
    };
    picture.into_string()
}
