//! Connection tracking: flows that lead to endpoints that are gone.
