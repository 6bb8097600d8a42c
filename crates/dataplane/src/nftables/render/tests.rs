//! Tests of the layout.
