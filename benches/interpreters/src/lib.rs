//! Nothing: the dependencies are what is needed.
