"""Build functions from their step programs: what is fed, what each stage holds, what crosses between stages."""
