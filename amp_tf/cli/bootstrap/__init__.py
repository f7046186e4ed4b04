"""Is the folder that ``amp-tf run`` puts in front of PYTHONPATH.

Python imports its sitecustomize at every start.
"""
