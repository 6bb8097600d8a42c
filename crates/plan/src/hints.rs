//! hints
