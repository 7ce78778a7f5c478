"""``make api-types``: write the rights of the components in an embedded cluster.

They are the rules of the manifests, so that a component may do the same on both. Needs kubectl.
"""

from support.component_roles import write

if __name__ == "__main__":
    write()
