"""Answers questions on a company's annual reports by searching them and calculating."""
