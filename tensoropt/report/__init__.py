"""Plans and frontiers explained from their files: tables, differences, recommendations, and a page for a browser.

Everything here reads rows as files have them, without TensorFlow and without the search, so that an answer is there at once.
"""
