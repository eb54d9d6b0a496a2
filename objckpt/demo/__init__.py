"""The demonstration: a real model trains, its job is killed in mid-save, a domain is lost, it resumes bit for bit."""
