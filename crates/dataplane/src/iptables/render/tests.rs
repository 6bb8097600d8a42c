//! Rendered chains as text.
