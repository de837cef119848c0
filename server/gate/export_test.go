package gate

// AppendCanonical is for tests of the form itself, which a fingerprint does not show.
var AppendCanonical = appendCanonical
