//! Room: snapshot.
